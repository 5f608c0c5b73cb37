# A Slurm of one node, a pfd and the jobs of TestSlurm. The script is process 1 of a process, a mount
# and a network namespace of its own, so that nothing outlives it.
# usage: slurm.sh PROGRAMS PROVIDER CONTRIB INPUTS WORK: the directories of pfd and exanetctl, of
# libexanet-fi.so, of contrib/slurm, of in.lj, and an empty one for Slurm's state and all logs
set -eu
programs=$1 provider=$2 contrib=$3 inputs=$4 work=$5
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/fi /run/exanet /run/job "$work/state" "$work/spool"
cp "$inputs/in.lj" /run/job
chown daemon:daemon /run/job
mount --bind "$programs" /usr/local/bin
mount --bind "$provider" /run/fi
# Slurm resolves no name if all addresses are those of loopback (getaddrinfo(3), AI_ADDRCONFIG).
ip link set lo up
ip address add 192.0.2.1/32 dev lo
trap 'code=$?; [ $code = 0 ] || tail -n 40 "$work"/*.log >&2; exit $code' EXIT

wait_until() {
	until "$@" >/dev/null 2>&1; do sleep 0.05; done
}

# as_user runs a command as a user whom Slurm knows, and who is not root.
as_user() {
	(cd /run/job && setpriv --reuid=daemon --regid=daemon --clear-groups "$@")
}

host=$(hostname)
node_is() {
	[ "$(sinfo -h -o %T)" = "$1" ]
}

none_attached() {
	! exanetctl domain --columns PID -o csv | grep '[0-9]'
}

dd if=/dev/urandom of="$work/key" bs=1024 count=1 2>/dev/null
chmod 600 "$work/key"
munged --key-file="$work/key" --socket=/run/munge.sock --pid-file=/run/munged.pid --log-file="$work/munged.log" --seed-file="$work/seed"
{
	cat <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthInfo=socket=/run/munge.sock
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
TmpFS=/run/job
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=16
PartitionName=all Nodes=$host Default=YES
END
	sed -n '/^```conf/,/^```/{/^```/d;p}' "$contrib/README.md" | sed "s,/usr/share/exanet/slurm,$contrib,"
} >/run/slurm.conf
export SLURM_CONF=/run/slurm.conf
slurmctld
slurmd
wait_until node_is idle

# Without pfd the prolog fails: the node is drained, and the job waits.
as_user sbatch -Q -o /dev/null --wrap=true
wait_until node_is drained
grep -o 'no pfd can be reached on [^:]*' "$work/slurmd.log"

pfd 2>"$work/pfd.log" &
wait_until exanetctl status
scontrol update "nodename=$host" state=resume
scancel 1
wait_until node_is idle

echo "== exanet"
as_user srun -n 2 lmp -in in.lj -log none
echo "== vader"
as_user env OMPI_MCA_pml=ob1 OMPI_MCA_btl=vader,self srun -n 2 lmp -in in.lj -log none

# Processes of a session of their own outlive a job as far as Slurm goes: the epilog ends them.
as_user srun -Q -n 1 sh -c '
	setsid exanetctl write --count 1000000000 >/dev/null 2>&1 &
	until exanetctl domain --columns PID -o csv 2>/dev/null | grep -q "[0-9]"; do sleep 0.05; done'
wait_until none_attached
