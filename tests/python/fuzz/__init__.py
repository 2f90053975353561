"""Random programs that must do on the tpu what they do on the CPU.

A program is Python text, one operator a line, written while it runs on the CPU, so that each line
knows the shapes, dtypes and values before it. The same text then runs on the tpu.

templates.py   the operators: lines with gaps, and how exact each must be
drawing.py     fills the gaps
undefined.py   what no two implementations need agree on, which a program must not ask for
tolerance.py   how far results may differ, and why
program.py     writes a program, runs it on both devices and compares
__main__.py    many programs: `make fuzz`
"""
