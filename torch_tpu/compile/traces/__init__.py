"""Dynamo's traces, kept on disk: the next process does not trace the same Python code again.

What Dynamo makes of a frame depends on what its guards check, on the code that it reads and on the
state of the process. All of that is written down beside the trace in words that mean the same in
another process (`facts`); where they hold there, the trace is what Dynamo would find (`entry`,
`store`).
"""
