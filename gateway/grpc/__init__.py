"""The Open Inference Protocol over gRPC; imported only if its port is set."""
