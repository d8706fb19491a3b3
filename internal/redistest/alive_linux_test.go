package redistest

// alive says whether a process runs. One that has ended and waits to be
// collected by a parent doesn't.
func alive(pid int) bool {
	s := state(pid)
	return s != 0 && s != 'Z'
}
