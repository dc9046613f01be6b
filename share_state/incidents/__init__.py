"""`share-state why`: the cause of a group's trouble on one screen; `share_state.why` is the call.

Read `incident` (which share-partition it is about, and everything that the screen says), `offset_story` (the
history of the offset that SPSO waits for, in sentences), and `incident_text` and `incident_page`, which print it.
"""
