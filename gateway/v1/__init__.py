"""/v1: requests in the form of OpenAI's and Anthropic's APIs, routed by the model they name."""
