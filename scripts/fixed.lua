-- Fixed window: at most units in each window [k*width, (k+1)*width) of the Unix grid.
--
-- KEYS  one key a limit: <prefix>:<policy>:fw1:<window µs>:{<subject>}
--       a string with the window's number k and the units used in it:
--         below a million units: k, then the units as six digits, an integer
--           of 64 bits that INCRBY raises, lifetime and all left alone
--         else: k, a blank, the units
-- Uses  GET SET INCRBY DEL PTTL PEXPIRE
--
-- A stored window later than the clock's own (the clock was set back) goes on
-- being the current one: state never moves back. A value of another form
-- counts as none and is written over.

local grid = true

-- limit.slot is the current window's number; limit.short says that its key has
-- the short form.
local function read(limit)
	local window, used, short = floor(now / limit.width), 0, false
	local value = call('GET', KEYS[limit.at])
	if value then
		local k = tonumber(sub(value, 1, -7))
		if k then
			if k >= window then
				window, used, short = k, tonumber(sub(value, -6), 10), true
			end
		else
			local long, count = string.match(value, '^(%d+) (%d+)$')
			long = tonumber(long)
			if long and long >= window then
				window, used = long, tonumber(count)
			end
		end
	end
	limit.slot, limit.used, limit.short = window, used, short
end

local function wait(limit, n)
	if n <= limit.units - limit.used then
		return 0
	end
	return (limit.slot + 1) * limit.width - now
end

-- A window's units are all alike. Only those of another can't be given back.
local function charge(limit, n, _, when)
	if n < 0 and when and when ~= 'oldest' and floor(when / limit.width) ~= limit.slot then
		return 0
	end
	local used, key = limit.used + n, KEYS[limit.at]
	limit.used = used
	if used == 0 then
		call('DEL', key)
	elseif used >= 1000000 then
		call('SET', key, format('%d %d', limit.slot, used), 'PX', lifetime((limit.slot + 1) * limit.width - now))
	elseif limit.short then
		call('INCRBY', key, format('%d', n))
	else
		call('SET', key, format('%d%06d', limit.slot, used), 'PX', lifetime((limit.slot + 1) * limit.width - now))
	end
	return -n
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		call('PEXPIRE', KEYS[limit.at], lifetime((limit.slot + 1) * limit.width - now))
	end
end
