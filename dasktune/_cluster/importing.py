"""The first import of the fork server: it turns garbage collection off until the last one.

Collections would take a third of the time of the imports, and find nothing.
"""

import gc

gc.disable()
