-- The fixed window's commonest run, one call of one limit that lets it through,
-- answered as the driver would, before any function or table is made: in two thirds of
-- the time. Whatever is out of the ordinary goes on to fixed.lua, which
-- describes the value: whole is the short form of it as a number.

if ARGV[2] == 'a' and ARGV[4] == '1' and not ARGV[8] then
	local n, units, width, key = ARGV[3] + 0, ARGV[5] + 0, ARGV[6] + 0, KEYS[1]
	local window = (now - now % width) / width
	local value = call('GET', key)
	local whole = value and tonumber(value, 10) or 0
	local used = whole % 1000000
	local stored = (whole - used) / 1000000
	if stored ~= window then
		used = 0
	end
	if n <= units - used and used + n < 1000000 and stored <= window
		and window < 9000000000 and (whole > 0 or not value) then
		local left = (window + 1) * width - now
		if stored == window and value then
			call('INCRBY', key, ARGV[3])
		else
			local lifetime = math.max(1, math.ceil(left / 1000))
			call('SET', key, string.format('%d%06d', window, n), 'PX', string.format('%d', lifetime))
		end
		used = used + n
		return {n, used, n <= units - used and 0 or left, left}
	end
end
