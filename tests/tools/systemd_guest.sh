# In a guest with cgroup v2, as root: systemd as the first process of a namespace, until the unit check.service has ended.
# $1 is a directory with that unit and others, copied to /run/systemd/system. What check.service writes to /run/check.log is written out at the end.
set -eu
group=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
mkdir "$group/outside" "$group/systemd"
echo $$ >"$group/outside/cgroup.procs"
echo "+memory +pids +cpu" >"$group/cgroup.subtree_control"
mkdir -p /run/systemd/system
cp "$1"/* /run/systemd/system/
for unit in udevd udev-trigger tmpfiles-setup tmpfiles-setup-dev sysusers sysctl random-seed update-utmp journal-flush; do
  ln -s /dev/null "/run/systemd/system/systemd-$unit.service" # a guest without devices needs none, and is quicker
done
mkfifo /run/born /run/go
# Who waits for the namespace's first process must not be in its group: systemd could give that to nobody then.
sh -c "echo \$\$ >$group/systemd/cgroup.procs; echo \$\$ >/run/pid; exec unshare -fpmC --mount-proc sh -c '
  echo >/run/born; read line </run/go
  umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup
  exec env container=guest /lib/systemd/systemd --unit=check.service --show-status=no --log-target=console'" >/run/systemd.log 2>&1 &
read line </run/born
cat /run/pid >"$group/outside/cgroup.procs"
echo >/run/go
wait || true
cat /run/check.log; tail -40 /run/systemd.log
