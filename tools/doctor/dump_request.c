/* SPDX-License-Identifier: MIT */
/* Why a process has not answered. */
#include <pwd.h>
#include "tools/common/libc.h"
#include "tools/doctor/doctor.h"

static const char topic[] = "processes";

/* The process answers only its own user and root; for other users even its socket may be invisible. */
static void foreign_user_explain(struct findings *f, const struct ask_process *p)
{
	struct passwd entry, *owner = NULL;
	int pid = p->pid ? (int)p->pid : (int)p->ns_pid;
	char number[16], cap[4096];

	if (getpwuid_r(p->uid, &entry, cap, sizeof(cap), &owner))
		owner = NULL;
	snprintf(number, sizeof(number), "%u", (unsigned)p->uid);
	finding_add(f, FINDING_ERROR, topic, "ask as that user, or as root",
	    "process %d (%s) belongs to user %s: only that user and root get an answer", pid, p->name,
	    owner ? owner->pw_name : number /* the user may have no name */);
}

void doctor_silence_explain(struct findings *f, const struct ask_process *p)
{
	int pid = p->pid ? (int)p->pid : (int)p->ns_pid, err = p->err;

	if (err == -ETIMEDOUT && p->state == 'T')
		finding_add(f, FINDING_ERROR, topic, "its peers wait for it: kill -CONT it",
		    "process %d (%s) is stopped", pid, p->name);
	else if (p->state == 'Z')
		finding_add(f, FINDING_ERROR, topic, "its peers wait for nobody: end the job",
		    "process %d (%s) is dead, and its parent has not looked", pid, p->name);
	else if (err == -ETIMEDOUT)
		finding_add(f, FINDING_ERROR, topic, "", "process %d (%s, state %c) does not answer within %d s", pid,
		    p->name, p->state, ASK_SECONDS);
	else if ((err == -ECONNREFUSED || err == -ECONNRESET) && geteuid() && geteuid() != p->uid)
		foreign_user_explain(f, p);
	else if (err == -ECONNREFUSED)
		finding_add(f, FINDING_WARN, topic,
		    "it has no communicator yet, runs without Shunt or with SHUNT_DOCTOR=0, or is in a container with "
		    "another "
		    "network: ask from inside that",
		    "process %d (%s) has no socket of Shunt", pid, p->name);
	else if (err == -ECONNRESET)
		finding_add(f, FINDING_ERROR, topic, "if it is about to end, ask again",
		    "process %d (%s) closed the connection without an answer", pid, p->name);
	else if (err == -EPERM)
		finding_add(f, FINDING_ERROR, topic, "", "the socket of process %d (%s) is not its own", pid, p->name);
	else if (err == -EACCES)
		finding_add(f, FINDING_WARN, topic, "run the command as root, or in that container",
		    "process %d of its container is in a network namespace that this user may not enter", pid);
	else if (err == -EMSGSIZE)
		finding_add(f, FINDING_ERROR, topic, "`shunt top` asks for less",
		    "process %d (%s) answers with more than %d MB", pid, p->name, ASK_MAX_BYTES >> 20);
	else
		finding_add(f, FINDING_ERROR, topic, "", "process %d (%s): %s", pid, p->name, strerror(-err));
}
