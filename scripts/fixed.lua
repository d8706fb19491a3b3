-- Fixed window: at most units in each window [k*width, (k+1)*width) of the Unix grid.
--
-- KEYS  one key a limit: <prefix>:<policy>:fw1:<window µs>:{<subject>}
--       a string "<window number k> <units used in it>"
-- Uses  GET SET DEL PTTL PEXPIRE
--
-- A stored window later than the clock's own (the clock was set back) goes on
-- being the current one: state never moves back.

local function read(limit)
	local window, used = floor(now / limit.width), 0
	local value = call('GET', KEYS[limit.at])
	if value then
		local k, count = string.match(value, '^(%d+) (%d+)$')
		k = tonumber(k)
		if k and k >= window then
			window, used = k, tonumber(count)
		end
	end
	limit.window, limit.used = window, used
end

local function ending(limit)
	return (limit.window + 1) * limit.width - now
end

-- Microseconds until n units fit; n is at most limit.units.
local function wait(limit, n)
	if n <= limit.units - limit.used then
		return 0
	end
	return ending(limit)
end

-- Microseconds until nothing is counted.
local function reset(limit)
	if limit.used == 0 then
		return 0
	end
	return ending(limit)
end

local function write(limit)
	call('SET', KEYS[limit.at], text(limit.window) .. ' ' .. text(limit.used), 'PX', lifetime(ending(limit)))
end

local function charge(limit, n)
	limit.used = limit.used + n
	write(limit)
end

-- Gives back up to n units, returns how many.
local function refund(limit, n)
	local given = min(n, limit.used)
	if given == 0 then
		return 0
	end
	limit.used = limit.used - given
	if limit.used == 0 then
		call('DEL', KEYS[limit.at])
	else
		write(limit)
	end
	return given
end

-- A key that lost its lifetime by somebody's hand gets it back on a refusal;
-- every write sets it anyway.
local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		call('PEXPIRE', KEYS[limit.at], lifetime(ending(limit)))
	end
end
