"""What the rooms of the lab share, each written once. Nothing here imports a room.

- files and runs: `checkpoint`, `lock`, `same_run`, `outputs`, `markers`, `machine`, `memory`;
- what a person reads: `progress`, `text_tables`, `figures`, `options`;
- data: `idx`, `download`, `mnist`;
- gradients with a known answer: `problems`, `candidates`, `law`, `truth`, `measure`; `timing`.
"""
