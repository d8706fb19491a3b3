-- Sliding log: at most units in (t-width, t] for every t, exactly.
--
-- KEYS  one key a limit: <prefix>:<policy>:sl1:<window µs>:{<subject>}
--       a sorted set; one member an admitted call (or batch of calls):
--         "<run id>.<item>:<units>"  score = microseconds when it was charged, or for
--                                    a lease, when its term ends
--       and the sum of all their units:
--         "total"                    score = -sum, so it's always the first member
-- ARGV  [2] an id no other run has
-- Uses  ZRANGE ZREVRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE ZADD ZREM DEL PTTL PEXPIRE
--
-- An entry with a score after now (a lease, or the clock was set back) counts until
-- width after its score. So scores aren't in the order of charging.

local PAGE = 128
local grid = false

-- limit.used: live units; limit.newest: score of the newest entry;
-- limit.dead: number of entries that no longer count but are still stored,
-- since a call that charges nothing writes nothing.
local function read(limit)
	local key = KEYS[limit.at]
	limit.used, limit.newest, limit.dead = 0, 0, 0
	local head = call('ZRANGE', key, '0', '1', 'WITHSCORES')
	if not head[4] then
		return
	end
	if head[1] ~= 'total' then
		error('ration: a sliding log without its total')
	end
	local used, horizon = -score(head[2]), now - limit.width
	if score(head[4]) <= horizon then
		local gone = call('ZRANGEBYSCORE', key, '0', format('%d', horizon))
		for _, member in ipairs(gone) do
			used = used - units_of(member)
		end
		limit.dead = #gone
	end
	limit.used = used
	limit.newest = score(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
end

local function wait(limit, n)
	local excess = n - (limit.units - limit.used)
	if excess <= 0 then
		return 0
	end
	if excess >= limit.used then
		return limit.newest + limit.width - now
	end
	local first = 1 + limit.dead
	while true do
		-- Every entry holds a unit at least, so excess entries are enough.
		local last = first + math.min(excess, PAGE) - 1
		local page = call('ZRANGE', KEYS[limit.at], format('%d', first), format('%d', last), 'WITHSCORES')
		if not page[1] then
			error('ration: a sliding log with a wrong total')
		end
		for i = 1, #page, 2 do
			excess = excess - units_of(page[i])
			if excess <= 0 then
				return score(page[i + 1]) + limit.width - now
			end
		end
		first = last + 1
	end
end

-- Takes n units out of the entries meant by when as in charge, which hold as many.
local function take(key, n, when)
	while n > 0 do
		local size, page = math.min(n, PAGE), nil
		if not when then
			page = call('ZREVRANGE', key, '0', format('%d', size - 1), 'WITHSCORES')
		elseif when == 'oldest' then
			page = call('ZRANGE', key, '1', format('%d', size), 'WITHSCORES')
		else
			local time = format('%d', when)
			page = call('ZRANGEBYSCORE', key, time, time, 'WITHSCORES', 'LIMIT', '0', format('%d', size))
		end
		for i = 1, #page, 2 do
			local member, units = page[i], units_of(page[i])
			call('ZREM', key, member)
			if units > n then
				call('ZADD', key, page[i + 1], string.match(member, '^.*:') .. format('%d', units - n))
			end
			n = n - math.min(n, units)
			if n == 0 then
				break
			end
		end
	end
end

local function expire(limit)
	call('PEXPIRE', KEYS[limit.at], lifetime(limit.newest + limit.width - now))
end

local function charge(limit, n, id, when)
	local key = KEYS[limit.at]
	if n < 0 and when and when ~= 'oldest' then
		local there = 0
		if when > now - limit.width then
			local time = format('%d', when)
			for _, member in ipairs(call('ZRANGEBYSCORE', key, time, time)) do
				there = there + units_of(member)
			end
		end
		n = -math.min(-n, there)
		if there == 0 then
			return 0
		end
	end
	limit.used = limit.used + n
	if limit.used == 0 then
		call('DEL', key)
		return -n
	end
	if limit.dead > 0 then
		call('ZREMRANGEBYSCORE', key, '0', format('%d', now - limit.width))
		limit.dead = 0
	end
	if n > 0 then
		when = when or now
		limit.newest = math.max(limit.newest, when)
		call('ZADD', key, format('%d', -limit.used), 'total', format('%d', when), format('%s.%d:%d', ARGV[2], id, n))
	else
		take(key, -n, when)
		limit.newest = score(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
		call('ZADD', key, format('%d', -limit.used), 'total')
	end
	expire(limit)
	return -n
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		expire(limit)
	end
end

at = 3 -- the id comes before the items
