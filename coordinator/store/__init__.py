"""The code that talks to the server: keys, Lua scripts, plans that call the scripts, and the transport."""
