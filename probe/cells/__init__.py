"""The seam between cells, which are plain data, and who runs them: this process, or workers on Ray.

In: cells, and the work that a worker is made from. Out: each cell's outcome, in the cells' order.
Open first: cell.py, then pool.py; local.py and on_ray.py run cells, runner.py chooses between them.
"""
