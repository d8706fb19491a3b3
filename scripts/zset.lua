-- Sliding log: at most units in (t-width, t] for every t, exactly.
--
-- KEYS  one key a limit: <prefix>:<policy>:sl1:<window µs>:{<subject>}
--       a sorted set; one member an admitted call (or batch of calls):
--         "<run id>.<item>:<units>"  score = microseconds when it was charged
--       and the sum of all their units:
--         "total"                    score = -sum, so it's always the first member
-- Uses  ZRANGE ZREVRANGE ZRANGEBYSCORE ZREMRANGEBYSCORE ZADD ZREM DEL PTTL PEXPIRE
--
-- An entry with a score after now (the clock was set back) counts until width
-- after its score.

local PAGE = 128

local function units_of(member)
	return tonumber(string.match(member, ':(%d+)$'))
end

-- A score as a number. Servers write round ones as 1.8e+15; a real Lua reads
-- that, miniredis' doesn't, so there the digits are put in their places.
local function score(value)
	local n = tonumber(value)
	if n then
		return n
	end
	local sign, int, frac, exponent = string.match(value, '^(-?)(%d+)%.?(%d*)e%+(%d+)$')
	return tonumber(sign .. int .. frac .. string.rep('0', exponent - #frac))
end

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
		local gone = call('ZRANGEBYSCORE', key, '0', text(horizon))
		for _, member in ipairs(gone) do
			used = used - units_of(member)
		end
		limit.dead = #gone
	end
	limit.used = used
	limit.newest = score(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
end

-- Microseconds until n units fit; n is at most limit.units.
local function wait(limit, n)
	local excess = n - (limit.units - limit.used)
	if excess <= 0 then
		return 0
	end
	local first = 1 + limit.dead
	while true do
		-- Every entry holds a unit at least, so excess entries are enough.
		local last = first + min(excess, PAGE) - 1
		local page = call('ZRANGE', KEYS[limit.at], text(first), text(last), 'WITHSCORES')
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

-- Microseconds until nothing is counted.
local function reset(limit)
	if limit.used == 0 then
		return 0
	end
	return limit.newest + limit.width - now
end

-- Entries that no longer count go with the next write.
local function trim(limit)
	if limit.dead > 0 then
		call('ZREMRANGEBYSCORE', KEYS[limit.at], '0', text(now - limit.width))
		limit.dead = 0
	end
end

local function expire(limit)
	call('PEXPIRE', KEYS[limit.at], lifetime(limit.newest + limit.width - now))
end

local function charge(limit, n, id)
	trim(limit)
	limit.used = limit.used + n
	limit.newest = max(limit.newest, now)
	call('ZADD', KEYS[limit.at], text(-limit.used), 'total', text(now), id .. ':' .. text(n))
	expire(limit)
end

-- Takes up to n units out of a page of entries, newest first; returns how many.
local function take(limit, n, page)
	local key, taken = KEYS[limit.at], 0
	for i = 1, #page, 2 do
		local member = page[i]
		local units = units_of(member)
		call('ZREM', key, member)
		taken = taken + units
		if taken > n then
			local rest = string.match(member, '^(.*):') .. ':' .. text(taken - n)
			call('ZADD', key, page[i + 1], rest)
			return n
		elseif taken == n then
			return n
		end
	end
	return taken
end

-- Gives back up to n units, returns how many.
local function refund(limit, n)
	local key, given = KEYS[limit.at], min(n, limit.used)
	if given == 0 then
		return 0
	end
	limit.used = limit.used - given
	if limit.used == 0 then
		call('DEL', key)
		return given
	end
	trim(limit)
	local left = given
	while left > 0 do
		local page = call('ZREVRANGE', key, '0', text(min(left, PAGE) - 1), 'WITHSCORES')
		left = left - take(limit, left, page)
	end
	limit.newest = score(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2])
	call('ZADD', key, text(-limit.used), 'total')
	expire(limit)
	return given
end

-- A key that lost its lifetime by somebody's hand gets it back on a refusal;
-- every write sets it anyway.
local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		expire(limit)
	end
end
