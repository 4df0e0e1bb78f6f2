"""The same twenty tasks for pyinfra."""

from pyinfra import host
from pyinfra.facts.files import File
from pyinfra.operations import files, server

root = "/var/tmp/opsctl-bench-root/p" + "".join(c for c in host.name if c.isdigit())
values = {"svc_name": "sglang", "svc_port": 30000, "svc_models": ["llama", "qwen", "drafter"]}
for sub, mode in (("", "755"), ("/etc", "755"), ("/logs", "750"), ("/weights", "755"), ("/run", "700")):
    files.directory(name=f"d{sub}", path=root + sub, mode=mode)
for name, mode in (("f1", "644"), ("f2", "600"), ("f3", "644")):
    files.file(name=name, path=f"{root}/etc/{name}", mode=mode)
files.link(name="ln", path=f"{root}/current", target=f"{root}/weights")
files.file(name="gone", path=f"{root}/old", present=False)
for name in ("one", "two", "three"):
    files.template(name=name, src=f"../templates/{name}.conf.j2", dest=f"{root}/etc/{name}.conf", mode="644", **values)
files.put(name="c1", src="../files/a.conf", dest=f"{root}/etc/a.conf", mode="644")
files.put(name="c2", src="../files/b.txt", dest=f"{root}/etc/b.txt", mode="644")
files.line(name="l1", path=f"{root}/etc/f1", line="limit = 1")
files.line(name="l2", path=f"{root}/etc/f1", line="limit = 2")
files.line(name="l3", path=f"{root}/etc/f3", line="limit = 3")
for name in ("g1", "g2"):
    if not host.get_fact(File, path=f"{root}/{name}"):
        server.shell(name=name, commands=[f"touch {root}/{name}"])
