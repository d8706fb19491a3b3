-- Compact log: at most units in (t-width, t] for every t, exactly, as zset.lua, in a tenth of its memory.
--
-- KEYS  one key a limit: <prefix>:<policy>:cl1:<window µs>:{<subject>}
--       a string of bytes; a number takes 7, the highest first:
--         1 (in one byte); units; newest; tail; oldest; first; room   the head, HEAD bytes
--         records number 0 to room-1 of 8 bytes                       time; weight
--       Those from first to tail-1 are the log, in the order of their times: oldest, the
--       time of record first, to newest. units is the sum of their weights. The others have ended
--       or are yet to come. Up to SMALL records are written anew with each charge: first is 0 then,
--       and room means nothing. More are added in place until there's no room.
-- Uses  GETRANGE SETRANGE SET DEL PTTL PEXPIRE
--
-- A weight is one hexadecimal digit: 16k+d means d*16^k units. A charge is a record for each
-- digit of its units but 0: 1 for 1 to 15 units, or 64; 14 at most. Hence all records are of one
-- length, and any can be read without those before it.
--
-- A time after now (the clock was set back) counts until width after it, and what is charged
-- meanwhile is put in its place before it. There are no leases. A value that isn't of this form
-- is an error.

local PAGE = 128
local grid = false

local function number(text, i)
	local a, b, c, d, e, f, g = byte(text, i, i + 6)
	return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

local function pack(n)
	local g = n % 256
	n = (n - g) / 256
	local f = n % 256
	n = (n - f) / 256
	local e = n % 256
	n = (n - e) / 256
	local d = n % 256
	n = (n - d) / 256
	local c = n % 256
	n = (n - c) / 256
	local b = n % 256
	return char((n - b) / 256, b, c, d, e, f, g)
end

-- The records of n units charged at a time.
local function entry(time, n)
	local stamp, place, text = pack(time), 0, ''
	while n > 0 do
		local digit = n % 16
		if digit > 0 then
			text = text .. stamp .. char(place + digit)
		end
		n = (n - digit) / 16
		place = place + 16
	end
	return text
end

-- The units of the record that begins at i.
local function units_at(text, i)
	local weight = byte(text, i + 7)
	if weight < 16 then
		return weight
	end
	local digit = weight % 16
	return math.ldexp(digit, (weight - digit) / 4)
end

-- The records from one to before another, at least one, as text. The first SMALL came with the head.
local function records(limit, from, to)
	local text
	if limit.text and to <= SMALL then
		text = sub(limit.text, HEAD + 8 * from + 1, HEAD + 8 * to)
	else
		text = call('GETRANGE', KEYS[limit.at], format('%d', HEAD + 8 * from), format('%d', HEAD + 8 * to - 1))
	end
	if from >= to or #text < 8 * (to - from) then
		error('ration: a compact log that is cut off or has wrong units')
	end
	return text
end

-- The number of the first record later than a time.
local function after(limit, time)
	local low, high = limit.first, limit.tail
	while low < high do
		local middle = floor((low + high) / 2)
		if number(records(limit, middle, middle + 1), 1) > time then
			high = middle
		else
			low = middle + 1
		end
	end
	return low
end

-- Passes over the records that no longer count. They stay stored, since a call that
-- charges nothing writes nothing.
local function pass(limit, horizon)
	local first, size = limit.first, 8
	while true do
		local text = records(limit, first, math.min(first + size, limit.tail))
		for i = 1, #text, 8 do
			local time = number(text, i)
			if time > horizon then
				limit.first = first + (i - 1) / 8
				limit.oldest = time
				return
			end
			limit.used = limit.used - units_at(text, i)
		end
		first = first + #text / 8
		if limit.tail - first == limit.used then -- all of one unit
			limit.first = first
			first = after(limit, horizon)
			limit.used = limit.tail - first
			size = 1
		else
			size = PAGE
		end
	end
end

-- limit.used: live units; limit.newest: the newest time, 0 if nothing counts; the rest
-- as in the head, of the live records.
local function read(limit)
	limit.used, limit.newest = 0, 0
	local text = call('GETRANGE', KEYS[limit.at], '0', '298') -- HEAD + 8*SMALL - 1
	if text == '' then
		return
	end
	if #text < HEAD or byte(text) ~= 1 then
		error('ration: not a compact log')
	end
	local newest, horizon = number(text, 9), now - limit.width
	if newest <= horizon then
		return
	end
	limit.text, limit.used, limit.newest = text, number(text, 2), newest
	limit.tail, limit.oldest, limit.first, limit.room = number(text, 16), number(text, 23), number(text, 30), number(text, 37)
	if limit.oldest <= horizon then
		pass(limit, horizon)
	end
end

local function wait(limit, n)
	local excess = n - (limit.units - limit.used)
	if excess <= 0 then
		return 0
	end
	if excess >= limit.used then
		return limit.newest + limit.width - now
	end
	if excess == 1 then
		return limit.oldest + limit.width - now
	end
	local first, size = limit.first, PAGE
	if limit.tail - first == limit.used then -- all of one unit
		first, size, excess = first + excess - 1, 1, 1
	end
	while true do
		local text = records(limit, first, math.min(first + size, limit.tail))
		for i = 1, #text, 8 do
			excess = excess - units_at(text, i)
			if excess <= 0 then
				return number(text, i) + limit.width - now
			end
		end
		first = first + #text / 8
	end
end

-- Writes text in place of the records from one on, and the head.
local function put(limit, from, text)
	local key, tail = KEYS[limit.at], from + #text / 8
	local live, life = tail - limit.first, lifetime(limit.newest + limit.width - now)
	if tail > SMALL and tail <= limit.room and limit.first <= limit.room / 2 then
		if text ~= '' then
			call('SETRANGE', key, format('%d', HEAD + 8 * from), text)
		end
		call('SETRANGE', key, '0', char(1) .. pack(limit.used) .. pack(limit.newest) .. pack(tail) ..
			pack(limit.oldest) .. pack(limit.first) .. pack(limit.room))
		call('PEXPIRE', key, life)
		limit.tail = tail
	else
		-- Anew: with no room to spare if small, else with a quarter more than is needed.
		if from > limit.first then
			text = records(limit, limit.first, from) .. text
		end
		local room = live
		if live > SMALL then
			room = room + 8 + floor(live / 4)
		end
		call('SET', key, char(1) .. pack(limit.used) .. pack(limit.newest) .. pack(live) ..
			pack(limit.oldest) .. pack(0) .. pack(room) .. text .. string.rep('\0', 8 * (room - live)), 'PX', life)
		limit.first, limit.tail, limit.room = 0, live, room
	end
	limit.text = nil
end

-- Gives back n units, newest first.
local function back(limit, n)
	limit.used = limit.used - n
	if limit.used == 0 then
		call('DEL', KEYS[limit.at])
		limit.newest = 0
		return n
	end
	local from, left, rest = limit.tail, n, ''
	while left > 0 do
		local page = math.max(limit.first, from - PAGE)
		local text = records(limit, page, from)
		for i = #text - 7, 1, -8 do
			local units = units_at(text, i)
			from = from - 1
			left = left - units
			if left < 0 then
				rest = entry(number(text, i), -left)
			end
			if left <= 0 then
				break
			end
		end
	end
	limit.newest = number(rest ~= '' and rest or records(limit, from - 1, from), 1)
	put(limit, from, rest)
	return n
end

local function charge(limit, n, _, when)
	if when then
		error('ration: a compact log has no leases')
	end
	if n < 0 then
		return back(limit, -n)
	end
	local text = entry(now, n)
	limit.used = limit.used + n
	if limit.newest == 0 then
		limit.newest, limit.oldest, limit.first, limit.tail, limit.room = now, now, 0, 0, 0
		put(limit, 0, text)
	elseif now >= limit.newest then
		limit.newest = now
		put(limit, limit.tail, text)
	else
		local from = after(limit, now)
		limit.oldest = math.min(limit.oldest, now)
		put(limit, from, text .. records(limit, from, limit.tail))
	end
end

local function mend(limit)
	if limit.used > 0 and call('PTTL', KEYS[limit.at]) == -1 then
		call('PEXPIRE', KEYS[limit.at], lifetime(limit.newest + limit.width - now))
	end
end
