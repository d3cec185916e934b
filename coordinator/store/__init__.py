"""Everything that talks to the server: keys, Lua scripts, plans that call them, and the transport."""
