package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// dieWithParent has the kernel kill the server when the thread that started
// it ends, however that comes about.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// state gives the letter the kernel describes a process with: T is stopped, Z
// has ended; 0 if there is none.
func state(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name before the state is in brackets and may hold anything.
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	if len(rest) < 2 {
		return 0
	}
	return rest[1]
}

// frozen says whether SIGSTOP has taken effect.
func frozen(pid int) bool { return state(pid) == 'T' }
