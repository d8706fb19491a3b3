package main

import "syscall"

// dieWithParent has the kernel end a process with the thread that started it, however that comes about.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
