"""What is known of machines.

In: nothing, or a name. Out: the one record ``Target``, a row of it for each CPU in a file for each instruction
set, and the record that a user's name or this computer gives. Not its business: choosing by them.
"""
