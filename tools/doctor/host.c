/* SPDX-License-Identifier: MIT */
/* Limits of the host and of a container. Each is tried if possible. */
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include "tools/common/libc.h"
#include "base/host.h"
#include "base/inet/netif.h"
#include "base/os.h"
#include "tools/doctor/doctor.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

#define MIB (1ull << 20)

static const char topic[] = "host";

static void check_shm(struct findings *f)
{
	struct statvfs v;
	unsigned long long total, left;

	if (statvfs("/dev/shm", &v)) {
		finding_add(f, FINDING_WARN, topic, "mount a tmpfs there",
		    "/dev/shm is not there (%m); the real NCCL and PyTorch's data loaders need it");
		return;
	}
	total = (unsigned long long)v.f_blocks * v.f_frsize;
	left = (unsigned long long)v.f_bavail * v.f_frsize;
	if (total <= 64 * MIB || left < 32 * MIB)
		finding_add(f, FINDING_WARN, topic, "in a container: docker run --shm-size=1g or --ipc=host",
		    "/dev/shm has %llu MiB, %llu free; Shunt needs none of it, but the real NCCL takes some for each "
		    "pair of ranks",
		    total / MIB, left / MIB);
	else
		finding_add(f, FINDING_OK, topic, "", "/dev/shm has %llu MiB, %llu free", total / MIB, left / MIB);
}

static bool have_infiniband(void)
{
	DIR *dir = opendir("/sys/class/infiniband");
	struct dirent *e = NULL;

	while (dir && (e = readdir(dir)) && e->d_name[0] == '.')
		;
	if (dir)
		closedir(dir);
	return e;
}

static void check_limits(struct findings *f)
{
	struct rlimit r;

	if (!getrlimit(RLIMIT_MEMLOCK, &r)) {
		if (r.rlim_cur == RLIM_INFINITY)
			finding_add(f, FINDING_OK, topic, "", "locked memory is not limited");
		else if (r.rlim_cur < 64 * MIB)
			finding_add(f, have_infiniband() ? FINDING_WARN : FINDING_INFO, topic,
			    "ulimit -l unlimited; docker run --ulimit memlock=-1",
			    "locked memory is limited to %llu KiB: InfiniBand under the real NCCL would fail",
			    (unsigned long long)r.rlim_cur / 1024);
		else
			finding_add(f, FINDING_OK, topic, "", "locked memory is limited to %llu MiB",
			    (unsigned long long)(r.rlim_cur / MIB));
	}
	if (!getrlimit(RLIMIT_NOFILE, &r)) {
		if (r.rlim_cur < 1024)
			finding_add(f, FINDING_WARN, topic, "ulimit -n 65536",
			    "a process may have %llu open files; communicators need some for each rank",
			    (unsigned long long)r.rlim_cur);
		else
			finding_add(f, FINDING_OK, topic, "", "a process may have %llu open files",
			    (unsigned long long)r.rlim_cur);
	}
}

/* Value of a line of /proc/self/status; -1: none. */
static long proc_status_value(const char *name)
{
	FILE *s = fopen("/proc/self/status", "re");
	long value = -1;
	char line[256];

	while (s && value < 0 && fgets(line, sizeof(line), s))
		if (!strncmp(line, name, strlen(name)))
			value = strtol(line + strlen(name), NULL, 10);
	if (s)
		fclose(s);
	return value;
}

static int send_fd(int to, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(to, &m, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static int receive_fd(int from)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
	};
	struct cmsghdr *c;
	int fd;

	if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1)
		return -errno;
	c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_type != SCM_RIGHTS)
		return -EBADMSG;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

/*
 * Tries a rendezvous as ranks of one host do it: an abstract socket, credentials, a descriptor. 0, or -errno and the
 * step that failed.
 */
static int try_rendezvous(const char **step_p)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred who;
	socklen_t n = sizeof(who), bytes;
	unsigned long long name = 0;
	int listener = -1, client = -1, server = -1, memory = -1, got = -1, err = 0;

	shunt_random(&name, sizeof(name));
	bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	    (size_t)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "shunt-doctor-try-%llx", name));
	*step_p = "connecting two Unix sockets in the abstract namespace";
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || client < 0 || bind(listener, (struct sockaddr *)&address, bytes) || listen(listener, 1) ||
	    connect(client, (struct sockaddr *)&address, bytes) ||
	    (server = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
		goto failed;
	*step_p = "asking a socket who is at its other end";
	if (getsockopt(server, SOL_SOCKET, SO_PEERCRED, &who, &n))
		goto failed;
	errno = EPERM;
	if (who.uid != geteuid())
		goto failed;
	*step_p = "making memory that can be passed (memfd_create)";
	memory = memfd_create("shunt-doctor", MFD_CLOEXEC);
	if (memory < 0 || ftruncate(memory, 4096))
		goto failed;
	*step_p = "passing a descriptor over a socket";
	err = send_fd(client, memory);
	if (!err) {
		got = receive_fd(server);
		err = got < 0 ? got : 0;
	}
	goto out;
failed:
	err = -errno;
out:
	for (int *fd = (int[]){ listener, client, server, memory, got, -2 }; *fd != -2; fd++)
		if (*fd >= 0)
			close(*fd);
	return err;
}

static void check_rendezvous(struct findings *f)
{
	const char *step;
	int err = try_rendezvous(&step);

	if (err)
		finding_add(f, FINDING_ERROR, topic,
		    "allow it in the container's seccomp or LSM profile (docker run --security-opt seccomp=...); "
		    "communicators stay with NCCL",
		    "ranks cannot pass memory to each other: %s: %s", step, strerror(-err));
	else
		finding_add(f, FINDING_OK, topic, "", "descriptors can be passed over abstract Unix sockets");
}

static void check_pidfd(struct findings *f)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0),
	    fd = self < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, self, 0, 0);

	if (self < 0 || (fd < 0 && errno != EBADF)) /* EBADF: stdin is closed */
		finding_add(f, FINDING_INFO, topic,
		    "docker run --cap-add SYS_PTRACE, if PyTorch is to share expandable segments between processes",
		    "%s is refused (%m); Shunt does not use it", self < 0 ? "pidfd_open" : "pidfd_getfd");
	if (fd >= 0)
		close(fd);
	if (self >= 0)
		close(self);
}

static void check_container(struct findings *f)
{
	bool docker = !access("/.dockerenv", F_OK), podman = !access("/run/.containerenv", F_OK),
	     kube = getenv("KUBERNETES_SERVICE_HOST") != NULL;

	if (docker || podman || kube)
		finding_add(f, FINDING_INFO, topic, "one container for all ranks of a host, or --network=host for each",
		    "this is a container (%s): ranks of one host find each other only within one network namespace",
		    kube       ? "Kubernetes" :
		        docker ? "Docker" :
		                 "Podman");
	if (proc_status_value("Seccomp:") == 2)
		finding_add(f, FINDING_INFO, topic, "",
		    "system calls are filtered (seccomp); what Shunt needs of them was tried above");
}

/* Where ranks of other hosts would find this one. */
static void check_address(struct findings *f)
{
	struct shunt_netaddr addr;
	char name[64], at[80], *port;

	shunt_host_name(name, sizeof(name));
	if (shunt_netif_here(&addr)) {
		finding_add(f, FINDING_WARN, topic,
		    "NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY choose among the interfaces",
		    "no interface at which ranks of other hosts could find this one");
		return;
	}
	shunt_netaddr_show(&addr, at, sizeof(at));
	port = strrchr(at, ':');
	if (port)
		*port = '\0';
	finding_add(f, FINDING_OK, topic, "", "host %s%s: ranks of other hosts find it at %s (%s)", name,
	    *shunt_host_override() ? " (SHUNT_HOSTID)" : "", at, addr.ifname);
}

void doctor_host(struct findings *f)
{
	check_address(f);
	doctor_nics(f);
	check_shm(f);
	check_limits(f);
	check_rendezvous(f);
	check_pidfd(f);
	check_container(f);
}
