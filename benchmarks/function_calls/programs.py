"""The same function for each server: {"inputs": {"name": text}} to {"outputs": {"text": text}}."""

from __future__ import annotations

from typing import Final

BODY: Final = b'{"inputs":{"name":"Ada"}}'
GREETING: Final = b"Hello, Ada"
HANDLERS: Final = {
    "fngate async def": """
async def predict(inputs, ctx):
    return {"text": "Hello, " + inputs["name"]}
""",
    "fngate async def, named": """
async def predict(name: str):
    return {"text": "Hello, " + name}
""",
    "fngate def": """
def predict(inputs, ctx):
    return {"text": "Hello, " + inputs["name"]}
""",
}
ASGI: Final = """
import msgspec
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body")
    name = msgspec.json.decode(body)["inputs"]["name"]
    answer = msgspec.json.encode({"outputs": {"text": "Hello, " + name}})
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": answer})
"""
FASTAPI: Final = """
from fastapi import FastAPI
from pydantic import BaseModel
class Inputs(BaseModel):
    name: str
class Call(BaseModel):
    inputs: Inputs
app = FastAPI()
@app.post("/")
async def predict(call: Call):
    return {"outputs": {"text": "Hello, " + call.inputs.name}}
@app.post("/def")
def predict_in_a_thread(call: Call):
    return {"outputs": {"text": "Hello, " + call.inputs.name}}
"""
LITSERVE: Final = """
import sys
import litserve
class Greeter(litserve.LitAPI):
    def setup(self, device):
        pass
    def decode_request(self, request):
        return request["inputs"]["name"]
    def predict(self, name):
        return {"text": "Hello, " + name}
    def encode_response(self, output):
        return {"outputs": output}
if __name__ == "__main__":
    server = litserve.LitServer(Greeter(), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False,
               generate_client_file=False, timeout_keep_alive=3600)
"""
BENTOML: Final = """
import bentoml
@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Greeter:
    @bentoml.api
    def predict(self, inputs: dict[str, str]) -> dict[str, dict[str, str]]:
        return {"outputs": {"text": "Hello, " + inputs["name"]}}
"""
UVICORN: Final = "--http httptools --loop asyncio --no-access-log --log-level error"
