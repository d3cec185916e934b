"""The page: a dashboard of a namespace in the browser, and the data that it reads."""
