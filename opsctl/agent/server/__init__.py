"""SGLang servers: found, started, waited for."""
