# produce.py: a program that enqueues runs
from app import report, research

from coordinator import Client

with Client() as client:
    handle = client.enqueue(research.inputs("moss"), key="moss-today")  # the same key finds the same run
    outlines = client.enqueue_many(report.inputs(topic) for topic in ("bread", "salt"))
    for outline in client.wait(outlines, timeout=60):  # in the order in which they end
        print(outline.result())
    print(handle.id, handle.created, handle.view().status)
    print(handle.result(timeout=120))
