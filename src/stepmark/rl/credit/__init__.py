"""Credit assignment: from step rewards, their places and masks to an advantage for each token, (B, T).

Each function is one paper's formula, named in its docstring with what differs. Masked tokens get 0 everywhere. Nothing here knows of
policies, optimisers or PRMs.
"""
