-- Units in flight: at most limit of them belong to leases that are alive.
--
-- KEYS  one key an item: <prefix>:<policy>:cc1:0:{<subject>}
--       a sorted set; one member a lease:
--         "<id>:<units>"  score = the microsecond from which on it's no longer alive
--       and the sum of all their units, of dead ones that are still stored too:
--         "total"         score = -sum, so it's always the first member
-- Uses  ZRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE ZSCORE ZADD ZREM DEL PTTL PEXPIRE
--
-- An item in ARGV:
--   op     a acquire a lease; one with this id that is alive is only prolonged: so
--            an item that comes twice counts once
--          k keep: prolong a lease that is alive. A dead one stays dead
--          r release a lease, p look
--   id     the lease's, no other has it
--   n      its units, 1 to 2^53+2; 0 for p
--   limit  units, 0 to 2^53
--   ttl    microseconds for which it lives, for a and k
--
-- The reply is one flat array of integers. For each item:
--   n if the lease is alive after it, or was released by it, else 0
--   units of all leases alive
--   for an a that got nothing, microseconds until it would if no lease is kept or
--     released (0: never), else 0
--   for a, microseconds until the last lease's end, else 0

local PAGE = 128

-- Microseconds until leases of so many units are dead; the first dead are stored still.
local function wait(set, excess, dead)
	local first = 1 + dead
	while true do
		local page = call('ZRANGE', set, format('%d', first), format('%d', first + PAGE - 1), 'WITHSCORES')
		if not page[1] then
			error('ration: fewer leases than their total')
		end
		for i = 1, #page, 2 do
			excess = excess - units_of(page[i])
			if excess <= 0 then
				return score(page[i + 1]) - now
			end
		end
		first = first + PAGE
	end
end

while ARGV[at] do
	local op, id, n, limit, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
	at, index = at + 5, index + 1
	local set, member = KEYS[index], id .. format(':%d', n)

	local used, dead, alive = 0, 0, false
	local head = call('ZRANGE', set, '0', '0', 'WITHSCORES')
	if head[1] then
		if head[1] ~= 'total' then
			error('ration: leases without their total')
		end
		used = -score(head[2])
		local gone = call('ZRANGEBYSCORE', set, '0', format('%d', now))
		for _, one in ipairs(gone) do
			used = used - units_of(one)
		end
		dead = #gone
		if op ~= 'p' then
			local ends = call('ZSCORE', set, member)
			alive = ends and score(ends) > now
		end
	end

	local granted, more = 0, 0
	if alive then
		granted = n
		if op == 'r' then
			more = -n
		end
	elseif op == 'a' and n <= limit - used then
		granted, more = n, n
	end
	if granted > 0 then
		used = used + more
		if dead > 0 then
			call('ZREMRANGEBYSCORE', set, '0', format('%d', now))
		end
		if used == 0 then
			call('DEL', set)
		elseif op == 'r' then
			call('ZREM', set, member)
		else
			call('ZADD', set, format('%d', now + ttl), member)
		end
		if used > 0 and (more ~= 0 or dead > 0) then
			call('ZADD', set, format('%d', -used), 'total')
		end
		-- Others' leases may last longer than this one: the key lives for the longest.
		if op ~= 'r' and call('PTTL', set) < ceil(ttl / 1000) + 1 then
			call('PEXPIRE', set, lifetime(ttl + 1000))
		end
		dead = 0
	end

	reply[size + 1] = granted
	reply[size + 2] = used
	reply[size + 3] = 0
	reply[size + 4] = 0
	if op == 'a' and used > 0 then
		if granted == 0 and n <= limit then
			reply[size + 3] = wait(set, n - (limit - used), dead)
		end
		reply[size + 4] = score(call('ZRANGE', set, '-1', '-1', 'WITHSCORES')[2]) - now
	end
	size = size + 4
end
return reply
