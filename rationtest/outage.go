package rationtest

// Stop makes this Redis unreachable until [Redis.Recover]: connections are cut, no command is
// run or answered. Limiters get ErrUnavailable of the class ration.ClassConnection, at once, or
// what the store's failure rule makes of it. What is stored stays, and lifetimes go on, as when
// a network is cut; for a server that lost its data, call Client().FlushAll after Recover.
func (r *Redis) Stop() { r.server.Cut() }

// Fail has this Redis answer each command with an error reply until [Redis.Recover], such as
// "OOM command not allowed when used memory > 'maxmemory'" (ration.ClassMemory) or
// "LOADING Redis is loading the dataset in memory" (ration.ClassLoading). No command is run. An
// empty reply is an error without a code of its own (ration.ClassReply).
func (r *Redis) Fail(reply string) { r.server.Fail(reply) }

// Recover ends what Stop or Fail began. The next call of a limiter on [Redis.Store] is answered by
// Redis again.
func (r *Redis) Recover() { r.server.Recover() }
