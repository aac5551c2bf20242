"""The contract's services, one thin file each: a request becomes a domain call and its result."""
