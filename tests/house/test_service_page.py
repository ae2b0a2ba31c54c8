"""The service of docs/service.md runs as it is written, under a real server."""

import json
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from optimized_stacks import recommending
from parts import require_part
from project_files import ROOT

torch = require_part("torch")
require_part("fastapi")
require_part("uvicorn")

from tinytorch.models.workload import Workload
from tinytorch.tuning.saving import save_optimized

YOURS = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
"""
STARTING_S = 120


def the_app():
    page = (ROOT / "docs" / "service.md").read_text("utf-8")
    blocks = [each.split("\n```")[0] for each in page.split("```python\n")[1:]]
    (app,) = [each for each in blocks if "FastAPI(" in each]
    return app


def answered(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_until_ready(url, server):
    end = time.monotonic() + STARTING_S
    while time.monotonic() < end and server.poll() is None:
        try:
            return answered(f"{url}/ready")
        except (URLError, ConnectionError):
            time.sleep(0.1)
    return {"ready": False}


@pytest.mark.slow
def test_the_service_gives_what_the_saved_model_gives(tmp_path):
    (tmp_path / "app.py").write_text(the_app(), "utf-8")
    (tmp_path / "yours.py").write_text(YOURS, "utf-8")
    namespace = {}
    exec(YOURS, namespace)
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    workload = Workload("yours", namespace["build"](), (rows,))
    optimization = recommending(workload, "bfloat16-layers")
    save_optimized(optimization, tmp_path / "best", workload=workload)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (
        f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT), *sys.path]!r}; import uvicorn; "
        f"uvicorn.run('app:app', host='127.0.0.1', port={port}, log_level='warning')"
    )
    server = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        url = f"http://127.0.0.1:{port}"
        assert wait_until_ready(url, server) == {"ready": True}
        found = answered(f"{url}/predict", {"rows": rows.tolist()})["outputs"]
    finally:
        server.terminate()
        server.wait(30)
    with torch.inference_mode():
        expected = optimization.model(rows)
    torch.testing.assert_close(torch.tensor(found), expected)
