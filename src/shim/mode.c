/* SPDX-License-Identifier: MIT */
#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "shim/calls/nvtx.h"
#include "shim/mode.h"
#include "shim/overlay/overlay.h"
#include "shim/real/real.h"
#include "shim/standalone/standalone.h"

_Atomic(const struct shunt_mode_ops *) shunt_process_ops;

const struct shunt_mode_ops *shunt_mode_choose(void)
{
	const struct shunt_mode_ops *ops;

	shunt_log_hold();
	shunt_lock_acquire(SHUNT_LOCK_REAL);
	ops = atomic_load(&shunt_process_ops);
	if (!ops) {
		shunt_thread()->inside++; /* a constructor that calls NCCL must not take the lock again */
		ops = !shunt_real_open()  ? &shunt_standalone_ops :
		    shunt_config()->marks ? shunt_overlay_marked() :
		                            &shunt_overlay_ops;
		shunt_thread()->inside--;
		shunt_nvtx_init();
		atomic_store_explicit(&shunt_process_ops, ops, memory_order_release);
	}
	shunt_lock_release(SHUNT_LOCK_REAL);
	shunt_log_flush();
	return ops;
}
