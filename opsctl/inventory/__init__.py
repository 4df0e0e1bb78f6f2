"""Hosts, groups and variables.

inventory = load()                       # -i FILE, $OPSCTL_INVENTORY, or inventory.yaml here or above
for host in inventory.select("blackwell:!spare"):
    host.connection()                    # ConnectionSpec for opsctl.remote.connect
    host.sglang.port                     # typed
    host.variables                       # for playbooks
"""

from opsctl.inventory.hosts import Inventory, InventoryHost, demand_reachable
from opsctl.inventory.load import find, load
from opsctl.inventory.model import SglangSettings

__all__ = ["Inventory", "InventoryHost", "SglangSettings", "demand_reachable", "find", "load"]
