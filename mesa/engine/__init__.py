"""What puts a plan on a model.

In: a plan, and a model's queries, keys and values. Out: attention as planned, in prefill and while decoding.
Open first: plug.py (`applied`), then attention.py, which follows a plan, on a CPU by cpu.py, elsewhere by gpu/;
rope.py gives queries and keys their positions, structure.py finds how a model attends.
"""
