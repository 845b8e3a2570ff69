"""Steps that Inductor compiles: what it will hold, the two modules of a plan, and what the code it wrote holds."""
