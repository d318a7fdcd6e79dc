"""What holds for every test of the project, also those beside the functions."""

import os
import signal

# Before anything imports ONNX Runtime: it would write a usage database and keep it open.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test could end
# none of them by Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
