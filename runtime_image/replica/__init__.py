"""A replica: the process that serves one model. Its event loop, links, batching and worker
threads."""
