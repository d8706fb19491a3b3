-- Token bucket: a bucket of units tokens that come back at an even pace, rate in width
-- microseconds. It's the generic cell rate algorithm (ITU-T I.371), kept as tokens rather than as a
-- time, so that another rate acts on the very tokens that are out.
--
-- KEYS  one key a limit: <prefix>:<policy>:tb1:<window µs>:{<subject>}
--       a string of four or five integers with blanks between:
--         the time of the last change, microseconds, or of the last turn that a waiter has reserved
--         whole tokens out then
--         and of one more, how many parts; width parts are a token
--         the time at which all are back, at the rate there was then
--         and where a turn is reserved, that rate
-- Uses  GET SET DEL PTTL PEXPIRE
--
-- A token that isn't wholly back is out. More may be out than the bucket holds, if units were lowered.
--
-- A stored time later than the clock's own, because it's a turn's or the clock was set back, goes on
-- being the time: state never moves back, and nobody gets in before the last turn, before which nothing is given
-- back but the turn itself. A value of another form counts as none and is written over.

local grid = false
fields = 4

-- limit.whole and limit.part are out at limit.time; limit.ends is when all are back at the latest.
local function read(limit)
	limit.time, limit.whole, limit.part, limit.ends, limit.used, limit.paced = now, 0, 0, 0, 0, nil
	local value = call('GET', KEYS[limit.at])
	if not value then
		return
	end
	local time, whole, part, ends, paced = string.match(value, '^(%d+) (%d+) (%d+) (%d+) ?(%d*)$')
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
	if paced ~= '' then
		limit.paced = paced + 0
	end
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

-- Lets time go by, or back, so that what's out is what would be out then.
local function move(limit, time)
	local back, rest = muldiv(math.abs(time - limit.time), limit.rate, limit.width)
	local sign = time > limit.time and 1 or -1
	limit.whole = limit.whole - sign * back
	limit.part = limit.part - sign * rest
	if limit.part < 0 then
		limit.whole, limit.part = limit.whole - 1, limit.part + limit.width
	elseif limit.part >= limit.width then
		limit.whole, limit.part = limit.whole + 1, limit.part - limit.width
	end
	limit.time = time
end

local function charge(limit, n, _, when)
	local key = KEYS[limit.at]
	if n < 0 and limit.paced and limit.time > now then
		if limit.time ~= when or limit.paced ~= limit.rate then
			return 0
		end
		move(limit, now) -- the turn before is found again below
	elseif n < 0 and when and when < now then
		return 0 -- once its turn is over, others may have had what comes back
	end
	if n < 0 then
		n = -math.min(-n, limit.whole + (limit.part > 0 and 1 or 0))
	end
	limit.whole = limit.whole + n
	if limit.whole < 0 then
		limit.whole, limit.part = 0, 0
	end
	if limit.time <= now then
		limit.paced = nil
	end
	local over = limit.whole + (limit.part > 0 and 1 or 0) - limit.units
	if over > 0 and (n > 0 or when) then
		move(limit, limit.time + back_in(limit, limit.whole - limit.units))
		limit.paced = limit.rate
		if limit.whole < 0 then -- so many come back within that microsecond
			limit.whole, limit.part = 0, 0
		end
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
	local value = format('%d %d %d %d', limit.time, limit.whole, limit.part, ends)
	if limit.paced then
		value = value .. format(' %d', limit.paced)
	end
	call('SET', key, value, 'PX', lifetime(ends - now))
	return -n
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		call('PEXPIRE', KEYS[limit.at], lifetime(limit.ends - now))
	end
end
