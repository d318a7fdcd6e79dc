"""Random requests from the OpenAPI document against a throw-away server over fake replicas.

schemathesis makes the requests and checks the answers: no status that the document does not have,
bodies as their schemas say, no 500. `make test-api` installs it in an environment of its own.
"""
