-- Sliding buckets: at most units in every span of a window. The window is cut
-- into S slots of width microseconds; the current slot and the S before it are
-- counted whole, so what is counted reaches back a window and up to a slot more.
--
-- KEYS  S+1 keys a limit: <prefix>:<policy>:sb1.<S>:<window µs>:{<subject>}:<0…S>
--       slot i of the grid [i*width, (i+1)*width) lives in key i mod (S+1),
--       a string "<slot number i> <units charged in it>"
-- Uses  MGET SET DEL
--
-- A stored slot later than the clock's own (the clock was set back) goes on
-- being the current one: state never moves back.

local function read(limit)
	local values = call('MGET', unpack(KEYS, limit.at, limit.at + limit.keys - 1))
	local slots, counts, top = {}, {}, floor(now / limit.width)
	for i = 1, limit.keys do
		local slot, count
		if values[i] then
			slot, count = string.match(values[i], '^(%d+) (%d+)$')
		end
		slots[i], counts[i] = tonumber(slot or 0), tonumber(count or 0)
		top = max(top, slots[i])
	end
	-- A count whose slot has left the window is none.
	local used, oldest = 0, top - limit.keys + 1
	for i = 1, limit.keys do
		if slots[i] < oldest then
			counts[i] = 0
		end
		used = used + counts[i]
	end
	limit.counts, limit.top, limit.used = counts, top, used
end

-- The place of a slot that is in the window in limit.counts.
local function place_of(limit, slot)
	return slot % limit.keys + 1
end

-- Microseconds until a slot is no longer counted.
local function ending(limit, slot)
	return (slot + limit.keys) * limit.width - now
end

-- Microseconds until n units fit; n is at most limit.units.
local function wait(limit, n)
	local excess = n - (limit.units - limit.used)
	if excess <= 0 then
		return 0
	end
	local slot = limit.top - limit.keys
	while excess > 0 do
		slot = slot + 1
		excess = excess - limit.counts[place_of(limit, slot)]
	end
	return ending(limit, slot)
end

-- Microseconds until nothing is counted.
local function reset(limit)
	if limit.used == 0 then
		return 0
	end
	local slot = limit.top
	while limit.counts[place_of(limit, slot)] == 0 do
		slot = slot - 1
	end
	return ending(limit, slot)
end

local function write(limit, slot)
	local place = place_of(limit, slot)
	local key, count = KEYS[limit.at + place - 1], limit.counts[place]
	if count == 0 then
		call('DEL', key)
	else
		call('SET', key, text(slot) .. ' ' .. text(count), 'PX', lifetime(ending(limit, slot)))
	end
end

local function charge(limit, n)
	local place = place_of(limit, limit.top)
	limit.counts[place] = limit.counts[place] + n
	limit.used = limit.used + n
	write(limit, limit.top)
end

-- Gives back up to n units, newest slot first, returns how many.
local function refund(limit, n)
	local given = min(n, limit.used)
	local left, slot = given, limit.top
	while left > 0 do
		local place = place_of(limit, slot)
		local take = min(left, limit.counts[place])
		if take > 0 then
			limit.counts[place] = limit.counts[place] - take
			write(limit, slot)
		end
		left, slot = left - take, slot - 1
	end
	limit.used = limit.used - given
	return given
end

-- Every write sets a lifetime, and a slot's turn overwrites what lost it.
local function mend(limit)
end
