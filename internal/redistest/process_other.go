//go:build !linux

package redistest

import "syscall"

// dieWithParent can't be had here: a server outlives a test binary that ends
// without running its cleanups.
func dieWithParent() *syscall.SysProcAttr { return nil }

// frozen can't be told here; SIGSTOP takes effect at once or soon.
func frozen(int) bool { return true }
