-- Token bucket: a bucket of units tokens that come back at an even pace, rate in width
-- microseconds. It's the generic cell rate algorithm (ITU-T I.371), kept as tokens rather than as a
-- time, so that another rate acts on the very tokens that are out.
--
-- KEYS  one key a limit: <prefix>:<policy>:tb1:<window µs>:{<subject>}
--       a string of four integers with blanks between:
--         the time of the last change, microseconds
--         whole tokens out then
--         and of one more, how many parts; width parts are a token
--         the time at which all are back, at the rate there was then
-- Uses  GET SET DEL PTTL PEXPIRE
--
-- A token that isn't wholly back is out. More are out than the bucket holds
-- if units were lowered, or where waiters have reserved some ahead: then nothing is given back
-- but the last reservation, as its place in time is somebody else's behind it.
--
-- A stored time later than the clock's own (the clock was set back) goes on being the
-- time: state never moves back. A value of another form counts as none and is written over.

local grid = false
fields = 4

-- limit.whole and limit.part are out at limit.time; limit.ends is when all are back at the latest.
local function read(limit)
	limit.time, limit.whole, limit.part, limit.ends, limit.used = now, 0, 0, 0, 0
	local value = call('GET', KEYS[limit.at])
	if not value then
		return
	end
	local time, whole, part, ends = string.match(value, '^(%d+) (%d+) (%d+) (%d+)$')
	if not ends or now >= ends + 0 then
		return
	end
	time, whole, part = time + 0, whole + 0, part + 0
	if now > time then
		local back, rest = muldiv(now - time, limit.rate, limit.width)
		whole = whole - back
		part = part - rest
		if part < 0 then
			part = part + limit.width
			whole = whole - 1
		end
		if whole < 0 then
			return
		end
		time = now
	end
	limit.time, limit.whole, limit.part, limit.ends = time, whole, part, ends + 0
	limit.used = whole + (part > 0 and 1 or 0)
end

-- Microseconds from limit.time until so many whole tokens and limit.part are back, rounded
-- up. limit.rest is by how much that's too long, in parts of which rate are a microsecond.
local function back_in(limit, tokens)
	local rate, part = limit.rate, limit.part
	limit.rest = 0
	if rate == 0 then
		return MULDIV_MAX
	end
	local time, rest = muldiv(tokens, limit.width, rate)
	local more = part % rate
	time = time + (part - more) / rate
	if rest >= rate - more then -- rest + more may have no exact sum
		time = time + 1
		rest = rest - (rate - more)
	else
		rest = rest + more
	end
	if rest > 0 then
		time = time + 1
		limit.rest = rate - rest
	end
	return time
end

local function wait(limit, n)
	if n <= limit.units - limit.used then
		return 0
	end
	local time = back_in(limit, limit.whole - (limit.units - n))
	return math.min(limit.time + time, limit.ends) - now
end

local function charge(limit, n, _, when)
	local key, left = KEYS[limit.at], limit.used - limit.units
	if n < 0 and left > 0 and not (when and now + wait(limit, 0) == when) then
		return 0
	end
	limit.whole = limit.whole + n
	if limit.whole < 0 then
		limit.whole, limit.part = 0, 0
	end
	limit.used = limit.whole + (limit.part > 0 and 1 or 0)
	if limit.used == 0 then
		call('DEL', key)
		return -n
	end
	local ends = math.min(limit.time + back_in(limit, limit.whole), MULDIV_MAX)
	if n < 0 then
		ends = math.min(ends, limit.ends)
	end
	limit.ends = ends
	call('SET', key, format('%d %d %d %d', limit.time, limit.whole, limit.part, ends), 'PX', lifetime(ends - now))
	return -n
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		call('PEXPIRE', KEYS[limit.at], lifetime(limit.ends - now))
	end
end
