-- Sliding counter: the window [k*width, (k+1)*width) of the Unix grid that now lies in, whole, and
-- the one before it, weighted by the share of it that lies in (now-width, now]:
--
--   counted = current + ceil(previous * (width - elapsed) / width)
--
-- KEYS  one key a limit: <prefix>:<policy>:sc1:<window µs>:{<subject>}
--       a string: the number k of the latest window with units in it, the units
--       charged in it, and those charged in the window before it, with blanks between
-- Uses  GET SET DEL PTTL PEXPIRE
--
-- A stored window later than the clock's own (the clock was set back) goes on
-- being the current one, as if at its beginning: state never moves back. A value of
-- another form counts as none and is written over.

local grid = true

-- Sets limit.used. What was granted never passes 2^53, but a clock that is set back in a
-- window makes the previous one count for more again.
local function count(limit)
	local share = 0
	if limit.previous > 0 then
		local left = math.min(limit.width, (limit.slot + 1) * limit.width - now)
		local rest
		share, rest = muldiv(limit.previous, left, limit.width)
		if rest > 0 then
			share = share + 1
		end
	end
	limit.used = math.min(limit.current + share, MULDIV_MAX)
	limit.held = limit.current + limit.previous
end

-- limit.slot is the current window's number, limit.current and limit.previous are units.
local function read(limit)
	local slot = floor(now / limit.width)
	limit.slot, limit.current, limit.previous = slot, 0, 0
	local value = call('GET', KEYS[limit.at])
	if value then
		local k, current, previous = string.match(value, '^(%d+) (%d+) (%d+)$')
		if k then
			k = k + 0
			if k >= slot then
				limit.slot, limit.current, limit.previous = k, current + 0, previous + 0
			elseif k == slot - 1 then
				limit.previous = current + 0
			end
		end
	end
	count(limit)
end

-- units of a window fit into room when at most floor(room * width / units) of it is left.
local function wait(limit, n)
	if n <= limit.units - limit.used then
		return 0
	end
	local room, turn, units = limit.units - n - limit.current, limit.slot + 1, limit.previous
	if room < 0 then -- not in this window, and in the next one it's the previous
		room = limit.units - n
		turn = turn + 1
		units = limit.current
	end
	return turn * limit.width - muldiv(room, limit.width, units) - now
end

-- The latest window with units in it, and microseconds until it counts nothing.
local function latest(limit)
	local slot = limit.slot
	if limit.current == 0 then
		slot = slot - 1
	end
	return slot, (slot + 2) * limit.width - now
end

-- Gives back units as they were charged, of which those of the previous window count in part.
local function charge(limit, n)
	local current = limit.current + n
	if current < 0 then
		limit.previous = limit.previous + current
		current = 0
	end
	limit.current = current
	count(limit)
	local key = KEYS[limit.at]
	if limit.held == 0 then
		call('DEL', key)
		return -n
	end
	local slot, left = latest(limit)
	local value = format('%d %d %d', slot, current, limit.previous)
	if current == 0 then
		value = format('%d %d 0', slot, limit.previous)
	end
	call('SET', key, value, 'PX', lifetime(left))
	return -n
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		local _, left = latest(limit)
		call('PEXPIRE', KEYS[limit.at], lifetime(left))
	end
end
