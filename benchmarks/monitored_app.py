"""A small FastAPI service with a monitor, as docs/monitoring.md shows it; it is put under load.

    uvicorn monitored_app:app --workers 2          # in this folder

MONITOR_OFF=1 serves without the monitor; MONITOR_SNAPSHOT names the file of its snapshots.
"""

import os
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, Response

from tinytorch import Monitor, Tensor, load_workload, no_grad
from tinytorch.monitoring.prometheus import export_metrics, metrics_text

workload = load_workload("cnn")
image = workload.inputs[0].data[:1]
monitor = Monitor(
    workload.model,
    name="cnn",
    sample=float(os.environ.get("MONITOR_SAMPLE", "0.01")),
    enabled="MONITOR_OFF" not in os.environ,
    snapshot=os.environ.get("MONITOR_SNAPSHOT"),
    snapshot_every_s=1.0,
)
export_metrics(monitor)


@asynccontextmanager
async def lifespan(app):
    yield
    monitor.close()


app = FastAPI(lifespan=lifespan)


@app.get("/predict")
def predict(rows: int = 1):
    with monitor.request(), no_grad():
        outputs = workload.model(Tensor(np.repeat(image, rows, axis=0)))
    return {"digits": outputs.data.argmax(1).tolist(), "process": os.getpid()}


@app.get("/monitor")
def snapshot():
    return monitor.snapshot().to_dict()


@app.get("/metrics")
def metrics():
    content, media_type = metrics_text()
    return Response(content, media_type=media_type)
