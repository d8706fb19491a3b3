-- Sliding buckets: at most units in every span of a window. The window is cut
-- into S slots of width microseconds; the current slot and the S before it are
-- counted whole, so what is counted reaches back a window and up to a slot more.
--
-- KEYS  S+1 keys a limit: <prefix>:<policy>:sb1.<S>:<window µs>:{<subject>}:<0…S>
--       slot i of the grid [i*width, (i+1)*width) lives in key i mod (S+1),
--       a string: units charged in it, as 16 digits, then its number i
-- Uses  MGET SET SETRANGE DEL
--
-- A stored slot later than the clock's own (the clock was set back) goes on
-- being the current one: state never moves back. A value that isn't of this
-- form counts as none and is written over.

-- limit.slot is the current slot; limit.counts has slot i at i mod (S+1), plus 1.
local function read(limit)
	local keys, top = limit.keys, floor(now / limit.width)
	local values = call('MGET', unpack(KEYS, limit.at, limit.at + keys - 1))
	local slots, counts = {}, {}
	for i = 1, keys do
		local value = values[i]
		local slot = value and tonumber(sub(value, 17))
		if slot then
			slots[i] = slot
			if slot > top then
				top = slot
			end
		end
	end
	local used, last = 0, top - keys
	for i = 1, keys do
		local count = 0
		if slots[i] and slots[i] > last then
			count = tonumber(sub(values[i], 1, 16), 10)
			used = used + count
		end
		counts[i] = count
	end
	limit.counts, limit.slot, limit.used = counts, top, used
end

local function wait(limit, n)
	local used, keys, counts, slot = limit.used, limit.keys, limit.counts, limit.slot
	local excess = n - (limit.units - used)
	if excess <= 0 then
		return 0
	end
	if excess >= used then -- all must go: look for the newest
		while counts[slot % keys + 1] == 0 do
			slot = slot - 1
		end
	else
		slot = slot - keys
		while excess > 0 do
			slot = slot + 1
			excess = excess - counts[slot % keys + 1]
		end
	end
	return (slot + keys) * limit.width - now
end

-- Sets a slot's count, old before, to count.
local function write(limit, slot, old, count)
	local place = slot % limit.keys
	local key = KEYS[limit.at + place]
	limit.counts[place + 1] = count
	if count == 0 then
		call('DEL', key)
	elseif old > 0 then
		call('SETRANGE', key, '0', format('%016d', count))
	else
		call('SET', key, format('%016d%d', count, slot), 'PX', lifetime((slot + limit.keys) * limit.width - now))
	end
end

local function charge(limit, n)
	local slot, keys, counts = limit.slot, limit.keys, limit.counts
	limit.used = limit.used + n
	if n > 0 then
		local old = counts[slot % keys + 1]
		write(limit, slot, old, old + n)
		return
	end
	local left = -n
	while left > 0 do
		local old = counts[slot % keys + 1]
		local back = math.min(left, old)
		if back > 0 then
			write(limit, slot, old, old - back)
		end
		left, slot = left - back, slot - 1
	end
end

-- A slot that lost its lifetime is written over when its turn comes again.
local function mend()
end

local at = 2 -- where the items begin in ARGV
