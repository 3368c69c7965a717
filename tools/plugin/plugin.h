/* SPDX-License-Identifier: MIT */
#pragma once
/* shunt plugin: declarations for the files of this folder. check and new have a file each. */
#include "shunt/plugin.h"
#include "tools/common/options.h"
#include "tools/common/tool.h"

/* ThreadSanitizer, which has at most 8,128 threads, fibers of the sim included; else no launch is cut. */
#if defined(__SANITIZE_THREAD__)
#define PLUGIN_RACES 66 /* exit status of a process with a report */
#define PLUGIN_LAUNCH "@2x64"
#define PLUGIN_ENQUEUE_MS 60000 /* a call that has not returned by then waits for another rank */
#else
#define PLUGIN_RACES 0
#define PLUGIN_LAUNCH ""
#define PLUGIN_ENQUEUE_MS 3000
#endif

/* argv[0] is the action's name; returns the exit status. */
int plugin_check_main(int argc, char **argv);
int plugin_new_main(int argc, char **argv);
extern const struct option_table plugin_check_options, plugin_new_options;

enum plugin_trial {
	PLUGIN_CASES,         /* all cases; each rank comes late in turn */
	PLUGIN_CASES_IN_TIME, /* the same, and no rank is late */
	PLUGIN_ONE_IN_TIME,   /* the first call alone, and no rank is late */
	PLUGIN_MISSING_RANK,  /* a rank that does not come */
	PLUGIN_NTRIALS
};

/* What a process that runs a trial tells the one that waits for it. */
struct plugin_report {
	unsigned ncases;   /* that are over */
	unsigned ncalls;   /* by the plug-in, in them */
	bool late;         /* the failure is in a call for which a rank came late */
	bool differs;      /* the ranks' results are not the same */
	bool is_over;      /* the trial came to its end */
	char at[160];      /* the case that runs */
	char failure[512]; /* "": none */
};

struct plugin_job {
	const char *path;
	const struct shunt_plugin *plugin;
	int nranks;
	enum plugin_trial trial;
	unsigned timeout_s;
	struct plugin_report *report;
};

/* In a process of its own, which it ends. */
void plugin_trial_run(const struct plugin_job *job) __attribute__((noreturn));
