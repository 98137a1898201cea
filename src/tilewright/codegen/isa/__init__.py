"""Instruction sets: one file of facts each. In: nothing. Out: tables of ``Machine``. Not its business: choosing one."""
