"""The Open Inference Protocol (v2): names, documents, errors, parameters. Pure."""
