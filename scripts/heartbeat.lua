-- The instances that use a policy, each with a place that it must renew.
--
-- KEYS[1]  <prefix>:<policy>:in1.<strategy>:<places>:{instances}
--          a sorted set; member an instance's id, score the microsecond at which its place is free again
-- ARGV[2]  id
-- ARGV[3]  microseconds for which it counts as there; 0: it leaves
-- ARGV[4]  microseconds for which its place stays taken after that
-- ARGV[5]  places, or 0: as many as come
-- Reply    instances there, this one included; 1 if it has a place, else 0
-- Uses     ZREMRANGEBYSCORE ZSCORE ZCARD ZADD ZREM PTTL PEXPIRE

local key, id, stay, linger, places = KEYS[1], ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0

call('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now))
local mine, count = call('ZSCORE', key, id), call('ZCARD', key)
if not mine then
	if stay == 0 or places > 0 and count >= places then
		return {count, 0}
	end
	count = count + 1
end
local free = now + stay + linger
if free <= now then
	call('ZREM', key, id)
	return {count - 1, 0}
end
call('ZADD', key, string.format('%d', free), id)
-- Others' places may last longer than ours: the key lives for the longest.
local lifetime = math.ceil((free - now) / 1000) + 1
if call('PTTL', key) < lifetime then
	call('PEXPIRE', key, string.format('%d', lifetime))
end
return {count, 1}
