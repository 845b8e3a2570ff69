"""Apply turns a captured graph and a Plan into the modules that carry the plan out."""
